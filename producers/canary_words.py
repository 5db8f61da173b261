"""The words that canary markers are made of: 256, short, common and unlike each other, since a model copies them."""

_TEXT = """
apple autumn badge basin beacon berry birch blade blanket bloom bottle brass bread brick bridge bronze brush butter
cable camel candle canyon canvas carbon carpet castle cattle cedar cello chain chalk cherry chess clay cliff cloud
clover coast cobalt coffee copper coral corner cotton crane crater creek crown crystal curtain dahlia dawn delta
desert diamond dinner dolphin donkey dragon drum eagle ember engine falcon farm fern ferry flame flint flower flute
forest fossil fountain fox frost garden garlic ginger glacier glass globe goat gold grain granite grape grass gravel
guitar hammer harbor harvest hawk hazel helmet heron honey horizon horse ice indigo iron island ivory jade jungle
kettle kitten ladder lagoon lake lamp lantern laurel lava leaf lemon library lime linen lion lizard lotus magnet
mango maple marble meadow melon metal mirror mist monkey moon moss mountain mustard needle nest nickel north oak
oasis ocean olive onion opal orange orchard orchid otter oven owl oyster paint palm panda paper parrot peach pearl
pebble pencil pepper piano pigeon pillow pine pitcher plaza plum pocket poppy powder prairie prism pumpkin quartz
quill rabbit rain raven reef ribbon rice ridge river robin rocket root rose ruby saddle saffron salmon salt sand
sapphire satin scarf seed shell shore silk silver slate snow sofa spark spice spider spoon spring spruce squirrel
stone storm stove straw stream sugar summit swan table tea temple thunder tiger timber toast tower trail tree tulip
tunnel turtle valley vapor velvet vine violet violin wagon walnut water wave wheat wheel willow window winter wolf
wood wool zebra
"""
WORDS = tuple(_TEXT.split())
