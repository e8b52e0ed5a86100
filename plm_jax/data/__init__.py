"""Data: from token records to batches.

    records, shards    files of token records
    token_counts       frequencies of tokens in them
    window_rules, window_counts, window_offsets, windows
                       packing strategies, and the windows that they make
    pipeline, mixtures
                       batches, data mixtures and prefetching
    bucketing          batches of texts of similar length, for inference

Imports storage and errors. It knows neither text nor tokenizers, models or objectives.
"""
