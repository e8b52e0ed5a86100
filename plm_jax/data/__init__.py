"""Data: from token records to batches.

    records, shards    files of token records
    window_rules, windows
                       packing strategies, and the windows that they make
    window_counts      numbers of windows, and frequencies of tokens
    pipeline, mixtures
                       batches, data mixtures and prefetching
    bucketing          batches of texts of similar length, for inference

Imports storage and errors. It knows neither text nor tokenizers, models or objectives.
"""
