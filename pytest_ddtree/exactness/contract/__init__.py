"""The contract that a server keeps whatever it is asked: procedures that gather evidence, without pytest."""
