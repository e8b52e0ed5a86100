"""Cleaning of a corpus before `prepare`: filters, deduplication, decontamination.

`clean` runs the stages of `clean_stages`, on one machine or many. `filter_documents` decides about
single documents (`filters` has its rules), `batches` about the documents of a batch. `duplicates`
finds documents that share hashes (`word_hashes`), in the stages of `duplicate_stages`.

May import `data`, `word_vectors` and what is below them; the API, the command line and benchmarks
use it.
"""
