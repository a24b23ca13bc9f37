"""What plans and operations really take on a device: time, bytes, workspace; and what the CUDA allocator takes."""
