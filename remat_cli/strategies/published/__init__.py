"""Methods from the literature, each as its paper has it where it says, to measure others against."""
