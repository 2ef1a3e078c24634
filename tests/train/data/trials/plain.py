"""Trials in plain lists and loops: the same draws in the same order give the same sequences."""

import itertools
import math

from train.data import draws
from train.data.trials.state import elements


def numbers(draw, bound, count):
    return [bits % bound for bits in draw.bits(count).tolist()]


def shuffled(draw, count, first=None):
    """Sorts 0 … count - 1 by their draws, or only the numbers below `first`."""
    bits = [word >> 1 for word in draw.bits(count).tolist()]
    return sorted(range(count if first is None else first), key=lambda number: (bits[number], number))


def stacked_recall(trial, draw, size):
    keys, values = shuffled(draw, trial.keys), numbers(draw, trial.values, trial.size)
    again = shuffled(draw, trial.size, size)[: trial.rewritten]
    shifts = numbers(draw, trial.values - 1, trial.rewritten or 1)
    asked = shuffled(draw, trial.size, size)
    tokens = [[1 + keys[pair], 1 + trial.keys + values[pair]] for pair in range(size)]
    for pair, shift in zip(again, shifts, strict=False):
        values[pair] = (values[pair] + 1 + shift) % trial.values
        tokens.append([1 + keys[pair], 1 + trial.keys + values[pair]])
    answers = {len(tokens) + place: 1 + trial.keys + values[pair] for place, pair in enumerate(asked)}
    return tokens + [[1 + keys[pair], 0] for pair in asked], answers


def recall(trial, draw, size):
    length, own = trial.length(trial.size), max(trial.length(1), 4 * size)
    keys, values = shuffled(draw, trial.keys), numbers(draw, trial.values, trial.size)
    words = [word >> 20 for word in draw.bits(length // 2).tolist()]
    asked, fillers = shuffled(draw, trial.size, size), numbers(draw, trial.fillers, length)
    tokens = [token for pair in range(size) for token in (keys[pair], trial.keys + values[pair])]
    tokens += [trial.keys + trial.values + fillers[place] for place in range(2 * size, own)]
    slots = range(own // 2 - size)

    def time(slot):  # an exponential variable, of 4096 values, over the slot's weight
        return -math.log((words[slot] + 0.5) / 4096) * (slot + 1) ** (1 - trial.power), slot

    answers = {}
    for pair, slot in zip(asked, sorted(slots, key=time), strict=False):
        tokens[2 * size + 2 * slot] = keys[pair]
        answers[2 * size + 2 * slot] = trial.keys + values[pair]
    return [[token] for token in tokens], answers


def in_context_recall(trial, draw, size):
    keys, of_key = numbers(draw, trial.keys, trial.size), numbers(draw, trial.values, trial.keys)
    noisy = [word >> 8 < trial.noise * 2**24 for word in draw.bits(trial.size).tolist()]
    noise = [trial.keys + trial.values + token for token in numbers(draw, trial.noises, 2 * trial.size)]
    tokens, answers, seen = [], {}, set()
    for pair in range(size):
        if noisy[pair]:
            tokens += noise[2 * pair : 2 * pair + 2]
            continue
        value = trial.keys + of_key[keys[pair]]
        if keys[pair] in seen:
            answers[2 * pair] = value
        seen.add(keys[pair])
        tokens += [keys[pair], value]
    return [[token] for token in tokens], answers


def fuzzy_recall(trial, draw, size):
    def motifs():
        words = draw.bits(trial.motifs * trial.symbols).reshape(trial.motifs, -1).tolist()
        orders = [sorted(range(trial.symbols), key=lambda symbol, of=of: (of[symbol], symbol)) for of in words]
        lengths = numbers(draw, trial.longest, trial.motifs)
        return [order[: 1 + length] for order, length in zip(orders, lengths, strict=True)]

    keys, values = motifs(), motifs()
    tokens, answers, known = [], {}, {}
    for motif in numbers(draw, trial.motifs, trial.size)[:size]:
        key = tuple(keys[motif])
        tokens += [2 + symbol for symbol in key] + [1]
        if key in known:
            answers |= {len(tokens) - 1 + number: token for number, token in enumerate(known[key])}
        known.setdefault(key, [2 + trial.symbols + symbol for symbol in values[motif]])
        tokens += known[key]
    return [[token] for token in tokens], answers


def copying(trial, draw, size):
    symbols = [2 + symbol for symbol in numbers(draw, trial.symbols, trial.size)][:size]
    tokens = [*symbols, 1, *symbols[:-1]]
    return [[token] for token in tokens], {size + place: symbol for place, symbol in enumerate(symbols)}


def selective_copying(trial, draw, size):
    symbols = [2 + symbol for symbol in numbers(draw, trial.symbols, trial.size)][:size]
    sign = trial.context - size - 1
    chosen = sorted([place for place in shuffled(draw, trial.context) if place < sign][:size])
    tokens = [0] * trial.context
    tokens[sign] = 1
    for place, symbol in zip(chosen, symbols, strict=True):
        tokens[place] = symbol
    return [[token] for token in tokens], {sign + 1 + place: symbol for place, symbol in enumerate(symbols)}


def induction(trial, draw, size):
    tokens = [2 + symbol for symbol in numbers(draw, trial.symbols, trial.size)][:size]
    words = draw.bits(trial.size).tolist()
    sign = max(range(size - 2), key=lambda place: (words[place], -place))
    tokens[sign] = tokens[-1] = 1
    return [[token] for token in tokens], {size - 1: tokens[sign + 1]}


def compression(trial, draw, size):
    symbols = [2 + symbol for symbol in numbers(draw, trial.symbols, trial.size)][: size - 1]
    return [[token] for token in [*symbols, 1]], dict(enumerate(symbols))


def memorisation(trial, draw, size):
    facts = draws.permutation(trial.facts, draws.TRIAL, 3).tolist()
    keys = numbers(draw, trial.facts, trial.size)[:size]
    tokens = itertools.chain.from_iterable((2 + key, 1) for key in keys)
    return [[token] for token in tokens], {2 * n + 1: 2 + trial.facts + facts[key] for n, key in enumerate(keys)}


def words(trial, draw, size):
    members = elements(trial.group)
    word, state, answers = numbers(draw, len(members), trial.size)[:size], members[0], {}
    for place, number in enumerate(word):
        state = tuple(members[number][x] for x in state)
        answers[place] = 1 + members.index(state)
    return [[1 + number] for number in word], answers
