"""Comparisons from their command to their table, each at a tiny scale."""
import gzip
import json
import pathlib

import pytest
import tiny

from benchmarks import chinese, comparison, kept, modern, objectives

GOOD, BAD = ('a fine film', 'we liked it',
             'good and moving'), ('a dull film', 'we left early', 'bad and long')
SMALL = ('--layers=2', '--width=64', '--rows=8', '--length=32', '--steps=6', '--tuning-seeds=2',
         '--tuning-epochs=0.5')
# Characters of the words.
HAN = '中国北京上海大城市我们他你好天气今明年月日人民生活学校老师书电影音乐历史文化经济发展技术科研究社会问题工作方法'


@pytest.fixture
def in_process(monkeypatch):
  """Call functions here instead of in a separate process, with their arguments converted by JSON;
  return the calls."""
  called = []
  def apart(function, given):
    called.append(function)
    return json.dumps(kept.named(function)(json.loads(json.dumps(given))))
  monkeypatch.setattr(kept, 'apart', apart)
  return called


def examples(folder, name, good, bad):
  rows = ''.join(f'{label}\t{text}\n' for _ in range(8) for some in zip(good, bad, strict=True)
                 for label, text in zip((1, 0), some, strict=True))
  for part in ('train', 'dev'):
    (folder / f'{name}_{part}.tsv.gz').write_bytes(
        gzip.compress(f'label\tsentence\n{rows}'.encode()))


@pytest.mark.slow
@pytest.mark.release
def test_modern(tmp_path, in_process, monkeypatch, capfd):
  text = tmp_path / 'text.txt'
  text.write_text(tiny.text())
  examples(tmp_path, 'cola', GOOD, BAD)
  examples(tmp_path, 'sst2', GOOD, BAD)
  monkeypatch.setattr('sys.argv', [
      'modern', f'--text={text}', f'--data={tmp_path}', f'--output={tmp_path}/out', '--vocab=1024',
      '--arms', 'all',
      '--seeds', '0', '--peaks', '1e-3', '2e-3', '--brief=2', *SMALL])
  comparison.main(modern.BENCH)
  assert in_process == ['benchmarks.modern:pretrained'] * 3 + ['benchmarks.kept:finetuned'] * 4
  first, nothing = capfd.readouterr().out.splitlines()[-2:]
  assert nothing.startswith('| from scratch | - | ') and nothing.count('±') == 2
  assert first.startswith('| all | ') and '| 6 |' in first and ' - |' not in first.replace(
      '| - | 6 |', '')
  assert not [*tmp_path.glob('out/sweep/*/')] and not [*tmp_path.glob('out/tasks/*/')]
  # others may start from the trained model
  assert [path.name for path in tmp_path.glob('out/runs/*/')]
  comparison.main(modern.BENCH)
  assert len(in_process) == 7 and capfd.readouterr().out.splitlines()[-2:] == [first, nothing]


@pytest.mark.slow
@pytest.mark.release
def test_objectives(tmp_path, in_process, monkeypatch, capfd):
  """A decoder has no masked tokens to predict, but a likelihood, which judges pairs."""
  text = tmp_path / 'text.txt'
  text.write_text(tiny.text())
  examples(tmp_path, 'cola', GOOD, BAD)
  examples(tmp_path, 'sst2', GOOD, BAD)
  pairs = (pathlib.Path(__file__).parents[1] / 'fixtures/blimp.jsonl').read_text().splitlines()
  short = [line for line in pairs if max(len(json.loads(line)[f'sentence_{kind}'])
                                         for kind in ('good', 'bad')) < 30]
  assert len(short) > 2
  (tmp_path / 'blimp_each5th.jsonl.gz').write_bytes(gzip.compress('\n'.join(short).encode()))
  monkeypatch.setattr('sys.argv', [
      'objectives', f'--text={text}', f'--data={tmp_path}', f'--output={tmp_path}/out',
      '--vocab=1024', '--arms', 'clm',
      'diffusion', '--peaks', '1e-3', *SMALL])
  comparison.main(objectives.BENCH)
  assert in_process.count('benchmarks.comparison:judge_pairs') == 2
  clm, diffusion = ([cell.strip() for cell in line.strip('|').split('|')] for line in
                    capfd.readouterr().out.splitlines()[-2:])
  assert clm[0] == 'causal LM' and clm[7:9] == ['-', '-'] and diffusion[0] == 'masked diffusion'
  for cell in (*clm[9:], *diffusion[7:]):
    assert float(cell.partition('±')[0]) >= 0


@pytest.mark.slow
@pytest.mark.release
def test_chinese(tmp_path, in_process, monkeypatch, capfd):
  pytest.importorskip('jieba')
  text = tmp_path / 'text.txt'
  lines = [''.join(HAN[(7 * line + place * place) % len(HAN)] for place in range(30)) + '。'
           for line in range(400)]
  text.write_text('\n\n'.join('\n'.join(lines[number:number + 8]) for number in range(0, 400, 8)))
  examples(tmp_path, 'chnsenticorp', ('天气好', '我们学校好', '好电影'), ('天气不好', '他不好', '不好问题'))
  tagged = ''.join(f'{character}\t{tag}\n'
                   for character, tag in zip('他工作北京', ('O', 'O', 'O', 'B-GPE', 'I-GPE'),
                                                                    strict=True)) + '\n'
  for part in ('train', 'dev'):
    (tmp_path / f'weibo_ner_{part}.conll.gz').write_bytes(gzip.compress((tagged * 40).encode()))
  monkeypatch.setattr('sys.argv', [
      'chinese', f'--text={text}', f'--data={tmp_path}', f'--output={tmp_path}/out', '--vocab=512',
      '--arms', 'macbert',
      *SMALL])
  comparison.main(chinese.BENCH)
  assert in_process == ['benchmarks.similar_words:made', 'benchmarks.chinese:pretrained'] + [
      'benchmarks.kept:finetuned'] * 4
  *_, arm, nothing = capfd.readouterr().out.splitlines()
  assert arm.startswith('| n-grams of similar words (MacBERT) | ') and nothing.startswith(
      '| from scratch | - | ')
  assert ' - |' not in arm.replace('| - | 6 |', '') and nothing.count('±') == 2
