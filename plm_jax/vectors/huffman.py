"""The tree of a hierarchical softmax: a word is predicted by a path of yes and no (Morin and Bengio 2005), frequent
ones by short paths (Mikolov et al. 2013, section 2.1)."""
import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Paths:
  """From the root to each word; rows of inner nodes are numbered as word2vec.c numbers them, the root last."""

  nodes: np.ndarray  # int32 [V, P], 0 behind the end
  codes: np.ndarray  # int8 [V, P]: 0 or 1, the branch that is taken; -1 behind the end


def paths(counts: np.ndarray) -> Paths:
  """Builds the Huffman tree of counts [V], which fall, by word2vec.c's CreateBinaryTree: two queues, the words from the
  rarest on and the inner nodes, of which the smaller is taken, and of equals the node."""
  size = len(counts)
  weight = [*map(int, counts), *[1 << 62] * (size - 1)]
  parent, code = np.zeros(2 * size - 1, np.int64), np.zeros(2 * size - 1, np.int8)
  word, node = size - 1, size
  for made in range(size, 2 * size - 1):
    pair = []
    for _ in range(2):
      if word >= 0 and weight[word] < weight[node]:
        pair.append(word)
        word -= 1
      else:
        pair.append(node)
        node += 1
    weight[made] = weight[pair[0]] + weight[pair[1]]
    parent[pair], code[pair[1]] = made, 1
  depth = np.zeros(2 * size - 1, np.int64)
  for at in range(2 * size - 3, -1, -1):
    depth[at] = depth[parent[at]] + 1
  longest = int(depth[:size].max())
  nodes, codes = np.zeros((size, longest), np.int32), np.full((size, longest), -1, np.int8)
  at = np.arange(size)
  for place in range(longest, 0, -1):  # upwards, all words together: those at this depth or below
    here = depth[at] == place
    codes[here, place - 1] = code[at[here]]
    nodes[here, place - 1] = parent[at[here]] - size
    at = np.where(here, parent[at], at)
  return Paths(nodes, codes)
