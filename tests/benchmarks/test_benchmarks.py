"""Benchmarks without other tests still run when the code that they call changes."""
import gzip
import json
import pathlib

import pytest
import tiny

from benchmarks import claims, defaults, masks


@pytest.mark.slow
@pytest.mark.release
def test_a_claim(tmp_path):
  """Parameters that one run has trained are judged by the objective of another."""
  text = tmp_path / 'text.txt'
  text.write_text(tiny.text())
  bench = claims.Bench(tmp_path / 'runs', str(text), 4)
  found = claims.spans(bench, 0)
  assert [*found] == ['spans and their boundaries', 'tokens',
                      'spans'] and all(0 <= x <= 1 for x in found.values())


@pytest.mark.slow
def test_masks_of_bart():
  assert all(abs(here - paper) < 0.05 + 0.05 * paper
             for here, paper in masks.bart(masks.CHUNK).values())


def test_parts_of_a_file_share_no_examples(tmp_path):
  """Of one file for all parts, of one for two of them, and of one each."""
  def write(name, text):
    (tmp_path / name).write_bytes(gzip.compress(text.encode()))
  write('a.conll.gz', '\n\n'.join(f'w{n} O' for n in range(100)))
  write('train.tsv.gz', 'label\ttext\n' + ''.join(f'1\tt{n}\n' for n in range(300)))
  write('dev.tsv.gz', 'label\ttext\n' + ''.join(f'1\td{n}\n' for n in range(300)))
  asked = [{'question': f'q{n}'} for n in range(3)]
  write('squad.json.gz',
        json.dumps({'data': [{'paragraphs': [{'context': 'a\tb', 'qas': asked}]}]}))
  def parts(of, between='\n'):
    files = defaults.divided(of, str(tmp_path), tmp_path / 'out', 100)
    return [pathlib.Path(file).read_text().rstrip('\n').split(between) for file in files]
  words = parts(defaults.Set('wikigold', ('a.conll.gz',), 'conll', reader=defaults.sentences),
                '\n\n')
  assert [len(part) for part in words] == [20, 40, 40] and len(
      {word for part in words for word in part}) == 100
  found = parts(defaults.Set('x', ('train.tsv.gz', 'dev.tsv.gz', 'dev.tsv.gz'), 'tsv'))
  assert [len(part) for part in found] == [101, 151,
                                           151] and all(part[0] == 'label\ttext' for part in found)
  assert not {*found[1][1:]} & {*found[2][1:]} and all(line.startswith('1\tt')
                                                       for line in found[0][1:])
  table = defaults.questions(gzip.decompress((tmp_path / 'squad.json.gz').read_bytes()).decode())
  assert table.examples == [f'q{n}\ta b' for n in range(3)]
