"""Preparation: text to token records, once for all runs that read them.

    prepare, prepare_config, finalize, journal
                       the work in one process, its options, its end, and how it resumes
    encode, word_segmentation
                       tokenization in worker processes, and which documents are held out
    fill_middle        documents whose middle comes last (FIM)
    tokenizer_fit      checks of a tokenizer on a text
    parallel_prepare, parallel_stages
                       the same work on many machines

Imports sources, data, tokenizers, storage, errors and validation. It knows neither models nor
objectives.
"""
