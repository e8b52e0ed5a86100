"""Schemes of tags: the same chunks, whatever the letters."""
import json

import pytest

from plm_jax.config.run import ConfigError
from plm_jax.metrics import tag_schemes, tasks
from plm_jax.sources.lines import SourceError
from plm_jax.tasks.sources import read_sources
from plm_jax.tasks.token_classification import TaggingTask

# Two chunks of PER next to each other, the first of three words, the second of one; one of LOC of
# two words.
CHUNKS = [(0, 2, 'PER'), (3, 3, 'PER'), (5, 6, 'LOC')]
WAYS = {
    'BIO': 'B-PER I-PER I-PER B-PER O B-LOC I-LOC',
    'BIOES': 'B-PER I-PER E-PER S-PER O B-LOC E-LOC',
    'BILOU': 'B-PER I-PER L-PER U-PER O B-LOC L-LOC',
    'BMES': 'B-PER M-PER E-PER S-PER O B-LOC E-LOC',
    'BIOEW': 'B-PER I-PER E-PER W-PER O B-LOC E-LOC',
    'BMEW': 'B-PER M-PER E-PER W-PER O B-LOC E-LOC'}


@pytest.mark.parametrize('scheme', WAYS)
def test_chunks_of_all_schemes(scheme):
  said = WAYS[scheme].split()
  assert list(tag_schemes.find_chunks(said)) == CHUNKS
  found = tag_schemes.find_scheme([said])
  assert (found.name == scheme or scheme == 'BIOEW') and found.conflicts == 0
  score = tasks.chunk_f1([WAYS['BIO'].split()], [said])
  assert score.total == (100, 100, 100, 3) and {name: one.support
                                                for name, one in score.types.items()} == {
      'LOC': 1, 'PER': 2}
  assert {f'{letter}-LOC' for letter in tag_schemes.SCHEMES[scheme]} <= {
      *tag_schemes.list_tag_names([said])}


@pytest.mark.parametrize('scheme', WAYS)
@pytest.mark.parametrize('style', ['PER-B', 'B_PER', 'PER_B'])
def test_other_schemes_give_the_same_chunks(tmp_path, scheme, style):
  def restyled(tag):
    letter, _, kind = tag.partition('-')
    return style.replace('PER', kind).replace('B', letter) if kind else tag
  said = WAYS[scheme].split()
  path = tmp_path / 'a.conll'
  path.write_text(''.join(f'w\t{restyled(tag)}\n' for tag in said))
  found = read_sources('tagging', [str(path)])
  assert [found.labels[tag] for tag in found.examples[0].label] == said
  assert any(f'tags such as {restyled("B-LOC")} are read as B-LOC' in note
             for note in found.report.notes)
  known = tuple(map(restyled, found.labels))  # of a model that has learned them so
  again = read_sources('tagging', [str(path)], labels=known, use='dev')
  assert [known[tag] for tag in again.examples[0].label] == list(map(restyled, said))


def test_iob1_and_invalid_tags():
  assert tag_schemes.find_scheme([['I-A', 'B-A', 'O']]) == tag_schemes.TagScheme('BIO', 1, 0)
  assert tag_schemes.find_scheme([['I-A', 'B-A', 'O']]).iob1
  # B before O, L at the beginning, B at the end
  assert tag_schemes.find_scheme([['B-A', 'O'], ['L-A', 'B-A']]).conflicts == 3
  assert tag_schemes.find_scheme([['NN', 'VB']]) == tag_schemes.find_scheme(
      [['O']]) == tag_schemes.TagScheme('')
  with pytest.raises(ValueError,
                     match='tags begin with B, L, M, which are letters of several schemes'):
    tag_schemes.find_scheme([['B-A', 'L-A'], ['M-A']])


def test_tags_without_a_type_are_chunks():
  said = ['B', 'M', 'E', 'S']
  assert tag_schemes.find_scheme([said]).name == 'BMES' and tag_schemes.list_tag_names([said]) == (
      'B', 'E', 'M', 'S')
  assert tasks.chunk_f1([said], [said]).types['_'].support == 2
  assert list(tag_schemes.find_chunks(said)) == []


@pytest.mark.parametrize('said', [['EVENT', 'O'], ['LOC', 'O'], ['NN', 'B-NP'], ['B-A', 'S']])
def test_entity_metrics_of_word_classes_are_refused_before_training(
    said):
  assert tag_schemes.find_invalid_tag(said)
  with pytest.raises(ConfigError,
                     match=r'belongs to no tag scheme.*give objective\.metric=accuracy'):
    TaggingTask(labels=tuple(said)).training_examples([])
  assert TaggingTask(labels=tuple(said), metric='accuracy').training_examples([]) == []
  assert TaggingTask(labels=('L-A', 'U-A', 'O')).training_examples([]) == []


@pytest.mark.parametrize('tag', [None, ['B-A'], float('nan'), True, 1.5, ' '])
def test_invalid_tags_are_refused(tmp_path, tag):
  path = tmp_path / 'a.jsonl'
  path.write_text(''.join(json.dumps({'tokens': ['x', 'y'], 'tags': ['O', one]}) + '\n'
                          for one in ('B-A', tag)))
  with pytest.raises(SourceError, match=r'a\.jsonl:2: a tag must be a text or a number'):
    read_sources('tagging', [str(path)])
  assert read_sources('tagging', [str(path)], on_error='skip').labels == ('B-A', 'I-A', 'O')
