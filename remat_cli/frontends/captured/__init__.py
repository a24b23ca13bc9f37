"""What the frontends share that capture training steps of a framework. Imports no framework."""
