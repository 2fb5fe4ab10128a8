"""The regularised incomplete beta function I(x; a, b): the probability that a Beta(a, b) value is at most x.

By the continued fraction of DLMF 8.17.22 (https://dlmf.nist.gov/8.17#v), for whole columns at once, with the factor
before the fraction in log space: a narrow distribution (a + b of 10⁵ and more) does not underflow there. The error is
below 1e-9 up to a + b = 10⁶, where the difference of logarithms of gamma limits the precision.
"""

from math import log, pi

import numpy as np

from tas.agents.agent import FloatArray

MAX_ROUNDS = 5000
"""The most rounds: a + b = 10⁸ needs 1,600."""

TOLERANCE = 1e-11
"""Two convergents that differ by no more than this part are the value. A smaller one costs more rounds, and the error
of the module is larger anyway."""

CHECKED = 5
"""After so many rounds it is looked which elements have converged: to look takes as long as half a round."""

STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360)
"""The factors of 1/z, 1/z³, … in Stirling's series (DLMF 5.11.1)."""

SMALLEST = 8.0
"""From here on the series is exact to the last digits."""

STEPS = 8
"""So many steps up reach `SMALLEST` from any positive number."""


class NotConvergedError(ArithmeticError):
    """The continued fraction did not converge: the arguments are far out of the range of the module."""


def beta_cdf(x: FloatArray, a: FloatArray, b: FloatArray) -> FloatArray:
    """I(x; a, b) for each element; `a` and `b` are positive and finite, `x` is from 0 to 1.

    Raises NotConvergedError.
    """
    inside = (x > 0.0) & (x < 1.0)
    if inside.all():
        return _inside(x.ravel(), a.ravel(), b.ravel()).reshape(x.shape)
    result = np.where(x >= 1.0, 1.0, 0.0)
    if inside.any():
        result[inside] = _inside(x[inside], a[inside], b[inside])
    return result


def beta_survival(x: FloatArray, a: FloatArray, b: FloatArray) -> FloatArray:
    """1 - I(x; a, b) without cancellation, so that a small probability keeps its digits."""
    return beta_cdf(1.0 - x, b, a)


def log_gamma(values: FloatArray) -> FloatArray:
    """The logarithm of gamma of positive numbers, by Stirling's series."""
    small = values < SMALLEST
    if not small.any():
        return _stirling(values)
    raised = np.where(small, values + STEPS, values)
    result = _stirling(raised)
    factor = each = values[small]
    for _ in range(STEPS - 1):  # gamma(z + 1) = z · gamma(z)
        each = each + 1.0
        factor = factor * each
    result[small] -= np.log(factor)
    return result


def _stirling(z: FloatArray) -> FloatArray:
    part = 1.0 / z
    square = part * part
    series = np.full_like(z, STIRLING[-1])
    for factor in STIRLING[-2::-1]:
        series = series * square + factor
    result: FloatArray = (z - 0.5) * np.log(z) - z + (0.5 * log(2 * pi)) + series * part
    return result


def _inside(x: FloatArray, a: FloatArray, b: FloatArray) -> FloatArray:
    # The fraction converges fast below the mean. Above, the mirrored one does: I(x; a, b) = 1 - I(1 - x; b, a).
    mirrored = x >= (a + 1.0) / (a + b + 2.0)
    at = np.where(mirrored, 1.0 - x, x)
    first, second = np.where(mirrored, (b, a), (a, b))
    of_first, of_second, of_both = log_gamma(np.array((first, second, first + second)))
    log_front = first * np.log(at) + second * np.log1p(-at) - (of_first + of_second - of_both)
    found = np.exp(log_front) / first * _fraction(at, first, second)
    result: FloatArray = np.minimum(np.where(mirrored, 1.0 - found, found), 1.0)
    return np.maximum(result, 0.0)


def _fraction(x: FloatArray, a: FloatArray, b: FloatArray) -> FloatArray:
    """1 / (1 + d1 / (1 + d2 / (1 + …))), by its convergents: numerators in one row, denominators in the other.

    A convergent follows from the two before it. They are scaled when it is looked, so that they never get too small.
    """
    values = np.empty_like(x)
    left = np.arange(x.size)  # the elements that go on, and some that have converged
    found, converged = np.empty_like(x), np.zeros(x.shape, dtype=np.bool_)
    both = a + b
    before, last = np.ones((2, x.size)), np.ones((2, x.size))
    last[1] -= both * x / (a + 1.0)
    for start in range(1, MAX_ROUNDS + 1, CHECKED):
        # The terms of some rounds at once: a call of numpy for 500 elements is as long as its loop.
        m = np.arange(start, start + CHECKED, dtype=np.float64)[:, np.newaxis]
        shifted = a + m
        divisor = shifted + m
        part = x / divisor
        even, odd = m * (b - m) * part / (divisor - 1.0), shifted * (both + m) * part / (divisor + 1.0)
        for even_term, odd_term in zip(even, odd, strict=True):
            before *= even_term
            before += last
            last *= odd_term
            np.subtract(before, last, out=last)
        scale = 1.0 / last[1]
        before *= scale
        last *= scale
        found = np.where(converged, found, last[0])  # so an element does not depend on the others
        converged |= np.abs(before[0] / before[1] - last[0]) <= TOLERANCE * last[0]
        number = left.size - np.count_nonzero(converged)
        if not number:
            values[left] = found
            return values
        if 2 * number < left.size:  # else those that have converged cost less than to sort them out
            values[left] = found
            on = ~converged
            left, x, a, b, both = left[on], x[on], a[on], b[on], both[on]
            before, last, found, converged = before[:, on], last[:, on], found[on], converged[on]
    raise NotConvergedError(f"I(x; a, b) with a = {a[0]:g}, b = {b[0]:g}, x = {x[0]:g}: {MAX_ROUNDS} rounds")
