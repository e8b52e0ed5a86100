"""Text sources: formats and character encodings of text, tables and data sets.

    document_formats   formats of text files
    lines              lines of files, compressed or not
    table_rows         rows of tables
    charsets           character encodings
    mediawiki, warc, tfds
                       particular formats and sources

Imports storage and errors. It knows neither tokenizers nor kinds of tasks.
"""
