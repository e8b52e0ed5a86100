"""Search in two languages: English words by their stems, Chinese by pairs of characters.

Sphinx's own Chinese search keeps the words of a dictionary, and finds a query only where it is one of them. Pairs of
characters need no dictionary, and whoever types any part of a phrase finds it.
"""
import re

from sphinx.search.en import SearchEnglish

CHINESE = re.compile('[\u3400-\u9fff]+')
WORD = re.compile('[^\\W\u3400-\u9fff]+')


class Bilingual(SearchEnglish):
  """Words of Latin letters as in English; of a run of Chinese characters all pairs of neighbours."""

  lang = 'en-zh'
  language_name = 'English'  # the name of its stemmer in the page's script
  js_splitter_code = r'''
var splitQuery = (query) => {
  const found = [];
  for (const [part] of query.matchAll(/[\u3400-\u9fff]+|[^\s\p{P}\p{S}\u3400-\u9fff]+/gu)) {
    if (!/^[\u3400-\u9fff]/.test(part) || part.length < 3) found.push(part);
    else for (let at = 0; at + 2 <= part.length; at++) found.push(part.slice(at, at + 2));
  }
  return found;
};
'''

  def split(self, input: str) -> list[str]:
    """Returns the terms of a text that are found."""
    pairs = [run[at:at + 2] for run in CHINESE.findall(input) for at in range(max(1, len(run) - 1))]
    return pairs + WORD.findall(input)
