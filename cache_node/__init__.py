"""An NVMe store for KV tensors, and a node that serves a real small model from it."""
