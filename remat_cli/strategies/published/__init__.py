"""Methods from the literature, each as published unless it says otherwise, for comparison."""
