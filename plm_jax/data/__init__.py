"""Data: text sources, token records, windows, and the input pipeline.

Reading text

    sources            a source string -> documents
    source_files       files, folders and globs of a source
    builtin_corpus, builtin_tasks
                       built-in text and labeled rows
    labeled_files, conll, text_to_text_tasks
                       labeled rows of tasks, and tasks as text to text

From text to token records (`prepare`)

    prepare, prepare_config, finalize, journal
                       the work in one process, its options, its end, and how it resumes
    encode, sentence_splitting, word_segmentation
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
