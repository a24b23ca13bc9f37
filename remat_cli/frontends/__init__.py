"""Where graphs come from and plans go to: one package per framework, each an optional extra."""
