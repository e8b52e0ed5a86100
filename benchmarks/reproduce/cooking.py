"""fastText's tutorial: tags of questions about cooking, in six settings.

Source: facebookresearch/fastText at 1142dc4c4ecbc19cc16eee5cdd28472e689267e6, docs/supervised-tutorial.md; TUTORIAL has
the lines. cooking.stackexchange.txt.xz has the questions of the tutorial's archive, which
sumanp/text-classification-fastText at fd43f36 keeps. They were contributed to https://cooking.stackexchange.com.
Their license, CC BY-SA 3.0, holds for this copy, too.
"""
import lzma
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
from typing import Any

TRAIN, VALID = 12404, 3000  # lines 139-140
TUTORIAL = {
    # name: (published precision at 1, line, options of fastText)
    'as it is': (0.124, 216, {}),
    'cleaned': (0.164, 302, {}),
    '25 epochs': (0.501, 353, {'epoch': 25}),
    'rate 1': (0.563, 377, {'lr': 1.0}),
    'rate 1, 25 epochs': (0.585, 407, {'lr': 1.0, 'epoch': 25}),
    'rate 1, 25 epochs, bigrams': (0.599, 441, {'lr': 1.0, 'epoch': 25, 'wordNgrams': 2})}
FIELDS = {'epoch': 'epochs', 'lr': 'rate', 'wordNgrams': 'ngrams'}


def run(given: dict[str, Any]) -> dict[str, Any]:
  """Train and test plm_jax's classifier in all settings; given: data and seed."""
  from plm_jax.word_vectors import classifier

  def train_and_test(train: pathlib.Path, valid: pathlib.Path, options: dict[str, Any]) -> float:
    config = classifier.ClassifierConfig(
        seed=given['seed'], **{FIELDS[name]: value for name, value in options.items()})
    model = classifier.train_classifier(classifier.read_labeled_texts(train), config)
    return classifier.measure(model, classifier.read_labeled_texts(valid))[1]

  return measure_all(given, train_and_test)


def run_fasttext(given: dict[str, Any]) -> dict[str, Any]:
  """Do the same with the program `fasttext` of the PATH; given: data and seed."""
  program = shutil.which('fasttext')
  if not program:
    raise FileNotFoundError('the program fasttext is not on the PATH: build facebookresearch/fastText with make')

  def train_and_test(train: pathlib.Path, valid: pathlib.Path, options: dict[str, Any]) -> float:
    flags = [part for name, value in options.items() for part in (f'-{name}', str(value))]
    model = train.parent / 'model'
    subprocess.run([program, 'supervised', '-input', train, '-output', model, '-seed', str(given['seed']), *flags],
                   check=True, capture_output=True)
    found = subprocess.run([program, 'test', f'{model}.bin', valid], check=True, capture_output=True, text=True).stdout
    return float(found.partition('P@1')[2].split()[0])

  return measure_all(given, train_and_test)


def measure_all(given: dict[str, Any], train_and_test: Any) -> dict[str, Any]:
  """Return the precision at 1 in every setting, or in the given ones; the last one is the score."""
  from benchmarks import kept
  text = lzma.decompress(kept.place(given['data'], 'cooking.stackexchange.txt.xz').read_bytes()).decode()
  # line 284: sed -e "s/\([.\!?,'/()]\)/ \1 /g" | tr "[:upper:]" "[:lower:]"
  cleaned = re.sub(r"([.!?,'/()\\])", r' \1 ', text)
  cleaned = cleaned.translate({code: code + 32 for code in range(ord('A'), ord('Z') + 1)})
  began, settings = time.time(), {}
  with tempfile.TemporaryDirectory() as folder:
    train, valid = pathlib.Path(folder, 'cooking.train'), pathlib.Path(folder, 'cooking.valid')
    for name in given.get('settings', TUTORIAL):
      lines = (text if name == 'as it is' else cleaned).removesuffix('\n').split('\n')
      train.write_text('\n'.join(lines[:TRAIN]) + '\n', encoding='utf-8')
      valid.write_text('\n'.join(lines[-VALID:]) + '\n', encoding='utf-8')
      settings[name] = train_and_test(train, valid, TUTORIAL[name][2])
  return {'score': settings[name], 'settings': settings, 'seconds': round(time.time() - began)}
