"""Cleaning of a corpus before `prepare`: filters, deduplication, decontamination.

`clean` runs everything on one machine, `clean_parallel` on many. `filter_documents` decides about
single documents (`filters`, `quality`, `contamination`), `duplicates` about documents that share
hashes (`word_hashes`, `minhash`, `disk_tables`).

May import `data`, `word_vectors` and what is below them; the API, the command line and benchmarks
use it.
"""
