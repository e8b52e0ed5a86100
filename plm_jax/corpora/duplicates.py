"""Which documents meet: equal numbers in tables that lie in files, however many there are.

Tables are parted by their numbers into pieces that fit into memory; in each, equal numbers stand together once it is
sorted. Documents are known by their place in the corpus; what hangs together is a forest in a file that is mapped to
memory, in which a document points to one before it.
"""
import numpy as np
from scipy.sparse import coo_matrix, csgraph

from plm_jax.corpora.minhash import MinHash

LEADERS = 16  # documents of a band that others are compared with: there is no end of what shares a header only


def linked(minhash: MinHash, places: np.ndarray, sketches: np.ndarray) -> np.ndarray:
  """Returns edges [E, 2] among documents that have a band in common: each with the first that is similar enough.

  places: [M], ascending; sketches: [M, values].
  """
  found = []
  for _ in range(LEADERS):
    if len(places) < 2:
      break
    alike = minhash.similar(sketches[0], sketches[1:])
    others = places[1:][alike]
    found.append(np.stack([np.broadcast_to(places[0], others.shape), others], 1))
    places, sketches = places[1:][~alike], sketches[1:][~alike]
  return np.concatenate(found) if found else np.empty((0, 2), places.dtype)


def join(forest: np.ndarray, edges: np.ndarray) -> None:
  """Joins the trees of documents between which there are edges [E, 2]. In `forest` [N] a document points to one before
  it, or to itself: then it is the first of its tree."""
  if not len(edges):
    return
  roots, ends = np.unique(root(forest, edges.ravel()), return_inverse=True)
  ends = ends.reshape(-1, 2)
  graph = coo_matrix((np.ones(len(ends), np.int8), (ends[:, 0], ends[:, 1])), (len(roots), len(roots)))
  _, component = csgraph.connected_components(graph, directed=False)
  _, first = np.unique(component, return_index=True)  # roots ascend: the first of a component is the least
  forest[roots] = roots[first[component]]


def root(forest: np.ndarray, places: np.ndarray) -> np.ndarray:
  """Follows documents [M] to the first ones of their trees."""
  while True:
    above = forest[places]
    if (above == places).all():
      return places
    places = above
