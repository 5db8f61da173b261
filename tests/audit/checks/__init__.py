"""Active checks, against a stub endpoint on a real socket."""
