"""How fast can an encoder of a given quality be pre-trained? README.md has the rules and the table of entries."""
