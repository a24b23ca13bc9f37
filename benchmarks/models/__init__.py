"""Real models of torchvision, timm, transformers and diffusers, in small sizes and with random weights."""
