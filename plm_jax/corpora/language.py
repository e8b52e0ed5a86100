"""In which language a text is: by py3langid, or by a classifier of fastText's that the user has."""
from collections.abc import Callable, Mapping
import functools

from plm_jax.errors import ConfigError

Identifier = Callable[[str], Mapping[str, float]]


@functools.cache
def identifier(model: str = '') -> Identifier:
  """Returns what tells how probable each language, ISO 639's code, is to be a text's.

  model: a .bin of fastText's `supervised` whose labels are __label__CODE; '': py3langid. Raises ConfigError where
  neither can be had, FastTextError for a file that is none.
  """
  if model:
    return fasttext(model)
  try:
    from py3langid import langid  # pyright: ignore[reportMissingImports]
  except ImportError as error:
    raise ConfigError("languages are told by the package py3langid: pip install 'plm_jax[corpora]'; or by a model of "
                      'fastText that you give with --language-model') from error
  loaded = langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)
  return lambda text: dict(loaded.rank(text))


def fasttext(model: str) -> Identifier:
  """Returns what tells languages by a .bin of fastText's."""
  from plm_jax.vectors import classifier, fasttext_bin  # which import JAX, and workers are many

  loaded = fasttext_bin.load(model)
  predict = classifier.predictor(loaded, len(loaded.labels))
  return lambda text: {label.removeprefix(classifier.LABEL): chance for label, chance in predict(text.split())}
