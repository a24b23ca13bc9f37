def page(document): return "TODO\n"
