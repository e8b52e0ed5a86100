"""Cleaning of a corpus before `prepare`: filters, deduplication, decontamination.

`clean` runs everything on one machine, `clean_stages` on many. `filter_documents` decides about
single documents (`filters` has its rules), `duplicates` about documents that share hashes
(`word_hashes`), `batches` has what both `clean` and `clean_stages` do with a batch.

May import `data`, `word_vectors` and what is below them; the API, the command line and benchmarks
use it.
"""
