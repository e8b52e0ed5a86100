"""Huffman tree of a hierarchical softmax.

A word is predicted by a path of binary decisions (Morin and Bengio 2005), a frequent one by a short
path (Mikolov et al. 2013, section 2.1).
"""
import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class HuffmanPaths:
  """Paths from the root to each word. Inner nodes have word2vec.c's numbers, with the root last."""

  nodes: np.ndarray  # int32 [V, P], 0 after the end of a path
  codes: np.ndarray  # int8 [V, P]: 0 or 1, the branch that is taken; -1 after the end


def huffman_paths(counts: np.ndarray) -> HuffmanPaths:
  """Build the Huffman tree of counts [V], which decrease, by word2vec.c's CreateBinaryTree.

  It takes the smaller head of two queues, the words from the rarest on and the inner nodes; of
  equal ones the node.
  """
  size = len(counts)
  weight = list(map(int, counts)) + [1 << 62] * (size - 1)
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
  nodes = np.zeros((size, longest), np.int32)
  codes = np.full((size, longest), -1, np.int8)
  at = np.arange(size)
  for place in range(longest, 0, -1):  # towards the root, all words of this depth or deeper at once
    here = depth[at] == place
    codes[here, place - 1] = code[at[here]]
    nodes[here, place - 1] = parent[at[here]] - size
    at = np.where(here, parent[at], at)
  return HuffmanPaths(nodes, codes)
