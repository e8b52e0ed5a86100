"""Data: token records, windows, and the input pipeline.

From text to token records (`prepare`)

    prepare, prepare_config, finalize, journal
                       the work in one process, its options, its end, and how it resumes
    encode, word_segmentation
                       tokenization in worker processes, and which documents are held out
    tokenizer_fit      checks of a tokenizer on a text
    parallel_prepare, parallel_stages, beam
                       the same work on many machines

From token records to batches

    records, shards                           files of token records
    window_rules, window_counts, window_offsets, windows
                       packing strategies, and the windows that they make
    pipeline           batches, data mixtures and prefetching
    bucketing          batches of texts of similar length, for inference

Imports sources, tokenizers, storage, errors and validation. It knows neither models nor objectives.
"""
