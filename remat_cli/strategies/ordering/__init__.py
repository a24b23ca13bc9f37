"""Other topological orders than the document's: found, ranked, and solved by any strategy."""
