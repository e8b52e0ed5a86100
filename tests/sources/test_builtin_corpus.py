import pytest

from plm_jax.sources import builtin_corpus

MODULE = '''"""Tools for wide arrays.

The tools in this :mod:`package` are ``fast``, and *every* one of them returns a
`Table <https://example.org/x>`_ of values; see [1]_ for the proof.

Examples
--------
>>> from package import tool
>>> tool(3)
A line of output that looks like a sentence of prose.

.. math:: x = y of which we say nothing at all here.

.. code-block:: python

    value = tool(3)  # this is some code and no prose

.. note::
    This note is part of the prose and stays in it.

========  ==================================
Name      What it is that this name stands for
========  ==================================

- The first item of the list is wrapped
  over two lines of the text.
- The second item is a whole sentence too.

Use it in the following way::

    result = tool(4) and this should not be here at all.

Short one.
"""


def tool(size, axis=None):
  r"""Returns the sum of the values along an axis.

  Parameters
  ----------
  size : int, optional
      The number of values that are summed, from the first one
      on.
  axis : None
      Axis or axes along which the sum is taken.

  Returns
  -------
  total
      The total as an array of one dimension less.
  """


def google(x):
  """Applies the function to the values of each row.

  Args:
    x: the values to which it is applied, which may
      be of any kind.
    y (optional): A number that is added at the very end.

  Returns:
    A table that has the same shape as its input.

  Raises:
    ValueError: If the table and the values do not agree.

  ```python
  google(1) is fenced code that nobody wants to read.
  ```
  """


class Table:
  """A table holds values in rows and in columns.

  The rows of a table all have the same length.
  """

  def rows(self):
    """Gives the rows of the table from the top.

    The rows of a table all have the same length.
    """

  def columns(self):
    """Gives the columns of the table from the left.

    Returns the sum of the values along an axis.
    """


attach('tool', """
    Computes the product of all values, one after the other, in the order in which they were \
given to the function.

    The order matters for numbers of limited precision, as everybody finds out who multiplies \
enough of them.
    """)
'''

EXPECTED = [
    ['The tools in this package are fast, and every one of them returns a Table of values; see [1] '
     'for the proof.',
     'This note is part of the prose and stays in it.',
     'The first item of the list is wrapped over two lines of the text.',
     'The second item is a whole sentence too.',
     'Use it in the following way:',
     'Returns the sum of the values along an axis.',
     'The number of values that are summed, from the first one on.',
     'Axis or axes along which the sum is taken.',
     'The total as an array of one dimension less.',
     'Applies the function to the values of each row.',
     'The values to which it is applied, which may be of any kind.',
     'A number that is added at the very end.',
     'A table that has the same shape as its input.',
     'If the table and the values do not agree.',
     'Computes the product of all values, one after the other, in the order in which they were '
     'given to the function.',
     'The order matters for numbers of limited precision, as everybody finds out who multiplies '
     'enough of them.'],
    ['A table holds values in rows and in columns.',
     'The rows of a table all have the same length.',
     'Gives the rows of the table from the top.',
     'Gives the columns of the table from the left.'],
]


@pytest.fixture
def package(tmp_path):
  more = ('async def f():\n  "A docstring of a line with enough words."\n'
          '  "A text of an attribute has its place here."')
  files = {'a.py': MODULE, 'b.py': MODULE, 'c.py': 'def broken(: """No."""', 'd.py': 'x = 1\n',
           'e.py': more}
  for name, text in files.items():
    (tmp_path / name).write_text(text)
  return [(name, tmp_path / name) for name in files]


def test_prose_is_what_is_left(package):
  documents = list(builtin_corpus.extract_documents(package[:1], workers=1))
  assert documents == EXPECTED


def test_a_paragraph_is_kept_once_and_broken_files_are_passed_over(package):
  documents = list(builtin_corpus.extract_documents(reversed(package), workers=1))
  more = ['A docstring of a line with enough words.', 'A text of an attribute has its place here.']
  assert documents == [*EXPECTED, more]


@pytest.mark.parametrize('text', [
    'Too short to keep.', 'lower case beginning of a broken paragraph is out.',
    'x + y * 3 / (a - b) + c[i] - 7 ** 2',
    'See the file at \\path and some more words here.', 'Names a | b | c in a row of words.',
    '1 2 3 4 5 6 7 8 9 10.',
    'This one stops in the middle, e.g.', 'This has an assignment x = 3 in the middle.'])
def test_what_is_no_prose(text):
  assert builtin_corpus.clean_docstring(text) == []


def test_corpus_is_made_once(package, tmp_path, monkeypatch):
  monkeypatch.setenv('PLM_JAX_CACHE', str(tmp_path / 'cache'))
  monkeypatch.setattr(builtin_corpus, 'list_source_files', lambda: package)
  path = builtin_corpus.corpus_path()
  assert path.read_text().split('\n\n')[1].split('\n') == EXPECTED[1]
  assert [p.name for p in path.parent.iterdir()] == [path.name]
  monkeypatch.setattr(builtin_corpus, 'list_source_files', lambda: 1 / 0)
  assert builtin_corpus.corpus_path() == path
  monkeypatch.setattr(builtin_corpus, 'package_versions', lambda: [('jax', '99')])
  with pytest.raises(ZeroDivisionError):  # another version is another corpus
    builtin_corpus.corpus_path()
  assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_files_are_those_of_the_installed_packages():
  names = {name for name, _ in builtin_corpus.list_source_files()}
  assert {'jax/_src/api.py', 'numpy/_core/fromnumeric.py', 'python/json/__init__.py'} <= names
  assert not any('/tests/' in name or 'site-packages' in name for name in names)
