"""Callbacks for trainers of other libraries, each a few lines over ``fit``. Import the one of the library you use."""
