"""Corpora with damage drawn from a seed: each is read, or refused in one line that names the
file."""
import gzip
import json
import lzma

import mutate
import pytest

from plm_jax.errors import UserError
from plm_jax.preparation import prepare
from plm_jax.preparation.prepare_config import PrepareConfig
from plm_jax.sources import labeled_files, text_sources
from plm_jax.sources.document_formats import TextReadConfig
from plm_jax.sources.lines import ReadStats

TEXT = ''.join(f'Sentence {n} of a text. It goes on\u2026\nand “on”.\n\n' for n in range(40))
LINES = ''.join(
    json.dumps({'text': f'One {n}.\nTwo.', 'id': n, 'sentence': 'x', 'label': n % 2}) + '\n'
    for n in range(30))
WIKI = ''.join(f'<doc id="{n}" url="x" title="T">\nT\n\nText {n}.\n</doc>\n' for n in range(20))
TABLE = 'text\tlabel\tsentence\n' + ''.join(f'Some text {n}.\t{n % 2}\t"Fine"\n' for n in range(30))
LIST = json.dumps([{'text': 'One.'}, 'Two.', {'text': 'Three.'}])
SQUAD = json.dumps({'data': [{'paragraphs': [{'context': 'I did.', 'qas': [
    {'id': '7', 'question': 'Who?', 'answers': [{'text': 'I', 'answer_start': 0}]}]}]}]})
WORDS = ''.join(f'-DOCSTART- O\n\nWord{n}\tB-X\nof\tO\n\nOne\tO\n\n' for n in range(20))
FILES = {
    'a.txt': TEXT.encode(), 'a.txt.gz': gzip.compress(TEXT.encode()),
    'a.txt.xz': lzma.compress(TEXT.encode()),
    'a.jsonl': LINES.encode(), 'a.jsonl.gz': gzip.compress(LINES.encode()),
    'wiki_00': WIKI.encode(),
    'a.tsv': TABLE.encode(), 'a.csv': TABLE.replace('\t', ',').encode(), 'a.json': LIST.encode()}


def tried(work, path):
  """What went wrong with `work`, '' if nothing; anything but one line that names the file is
  raised."""
  problem = ''
  try:
    with mutate.limits():
      work()
  except UserError as error:
    problem = str(error)
  assert '\n' not in problem
  assert not problem or str(path) in problem
  return problem


@pytest.mark.parametrize('on_error', ['refuse', 'skip'])
@pytest.mark.parametrize('name', FILES)
def test_reading(tmp_path, name, on_error):
  path, outcomes = tmp_path / name, []
  for content in mutate.contents(FILES[name], 60):
    path.write_bytes(content)
    stats = ReadStats()

    def read(stats=stats):
      for document in text_sources.read_documents(str(path), TextReadConfig(on_error), stats):
        '\n'.join(document.paragraphs).encode()
      text_sources.fingerprint(str(path))

    outcomes.append(tried(read, path))
    assert len(stats.examples) == min(10, stats.skipped)
  assert '' in outcomes or name.endswith(('gz', 'xz'))  # archives have checksums


@pytest.mark.parametrize(('name', 'task'), [
    ('a.jsonl', 'sst2'), ('a.tsv', 'sst2'), ('b.json', 'squad'), ('c.conll', 'sst2')])
def test_rows(tmp_path, name, task):
  path = tmp_path / name
  whole = {'b.json': SQUAD.encode(), 'c.conll': WORDS.encode()}.get(name) or FILES[name]
  damaged = [*mutate.contents(whole, 60),
             *(mutate.jsons(json.loads(SQUAD), 60) if name == 'b.json' else ())]
  for content in damaged:
    path.write_bytes(content)
    tried(lambda: list(labeled_files.iterate_rows(str(path), 'skip')), path)
    tried(lambda: list(text_sources.read_documents(f'task:{task}:{path}')), path)


@pytest.mark.parametrize('name', ['a.txt', 'a.jsonl.gz', 'a.tsv'])
def test_preparing(tmp_path, name, capsys):
  path = tmp_path / name
  for number, content in enumerate(mutate.contents(FILES[name], 15, seed=1)):
    path.write_bytes(content)
    config = PrepareConfig(source=str(path), kind='bytes', on_error='skip', shard_tokens=1000,
                           workers=1)
    problem = tried(lambda config=config, number=number: prepare.prepare(
        config, tmp_path / f'{number}'), path)
    assert bool(problem) != (tmp_path / f'{number}/records.json').exists()


def test_journals(tmp_path, capsys):
  path = tmp_path / 'a.txt'
  path.write_bytes(FILES['a.txt'])
  config = PrepareConfig(source=str(path), kind='bytes', shard_tokens=1000, workers=1)
  expected = prepare.prepare(config, tmp_path / 'whole')
  journal = {'format': 2, 'source': 'x' * 64, 'documents': 3,
             'train': [{'name': 'train-00000', 'tokens': 3}]}
  for number, content in enumerate([*mutate.jsons(journal, 12),
                                    *mutate.contents(json.dumps(journal).encode(), 12)]):
    folder = tmp_path / f'{number}'
    folder.mkdir()
    (folder / 'journal.json').write_bytes(content)
    if not tried(lambda folder=folder: prepare.prepare(config, folder), folder):
      assert prepare.records.read_meta(folder) == expected
