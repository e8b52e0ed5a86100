"""Published results, repeated from the authors' text to the authors' number: see README.md."""
