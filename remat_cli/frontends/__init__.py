"""Where graphs come from and plans go to: one room per framework, each an optional extra."""
