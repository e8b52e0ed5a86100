"""Text sources: which files there are, and their documents or labeled rows.

    text_sources       a source string -> documents
    source_files       files, folders and globs of a source
    document_formats   formats of text files
    lines              lines of files, compressed or not
    table_rows         rows of tables
    charsets           character encodings
    page_dumps, tfds, builtin_corpus, builtin_tasks
                       particular formats and sources
    labeled_files, conll, text_to_text_tasks
                       labeled rows of tasks, and tasks as text to text
    row_readers, class_names
                       labeled examples, made of rows, and the classes of their labels
    sentence_splitting
                       sentences of paragraphs

Imports storage, distributed, validation and errors. It knows neither tokenizers nor kinds of tasks.
"""
