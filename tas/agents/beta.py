"""The regularised incomplete beta function I(x; a, b): the probability that a Beta(a, b) value is at most x.

By the continued fraction of DLMF 8.17.22 (https://dlmf.nist.gov/8.17#v) in modified Lentz form, for whole columns at
once, with the factor before the fraction in log space: a narrow distribution (a + b of 10⁵ and more) does not underflow
there. The error is below 1e-9 up to a + b = 10⁶, where the difference of logarithms of gamma limits the precision.
"""

from math import lgamma

import numpy as np

from tas.agents.agent import FloatArray

MAX_ROUNDS = 5000
"""The most rounds: a + b = 10⁸ needs 1,600."""

TOLERANCE = 1e-13
_TINY = 1e-300
"""Added to divisors. Each is 1 + something, so it is 0 or so large that this changes nothing."""


class NotConvergedError(ArithmeticError):
    """The continued fraction did not converge: the arguments are far out of the range of the module."""


def beta_cdf(x: FloatArray, a: FloatArray, b: FloatArray) -> FloatArray:
    """I(x; a, b) for each element; `a` and `b` are positive and finite, `x` is from 0 to 1.

    Raises NotConvergedError.
    """
    result = np.where(x >= 1.0, 1.0, 0.0)
    inside = (x > 0.0) & (x < 1.0)
    if inside.any():
        result[inside] = _inside(x[inside], a[inside], b[inside])
    return result


def beta_survival(x: FloatArray, a: FloatArray, b: FloatArray) -> FloatArray:
    """1 - I(x; a, b) without cancellation, so that a small probability keeps its digits."""
    return beta_cdf(1.0 - x, b, a)


def _inside(x: FloatArray, a: FloatArray, b: FloatArray) -> FloatArray:
    # The fraction converges fast below the mean. Above, the mirrored one does: I(x; a, b) = 1 - I(1 - x; b, a).
    mirrored = x >= (a + 1.0) / (a + b + 2.0)
    at = np.where(mirrored, 1.0 - x, x)
    first, second = np.where(mirrored, b, a), np.where(mirrored, a, b)
    log_beta = _lgamma(first) + _lgamma(second) - _lgamma(first + second)
    log_front = first * np.log(at) + second * np.log1p(-at) - log_beta
    found = np.exp(log_front) / first * _fraction(at, first, second)
    result: FloatArray = np.clip(np.where(mirrored, 1.0 - found, found), 0.0, 1.0)
    return result


def _fraction(x: FloatArray, a: FloatArray, b: FloatArray) -> FloatArray:
    """1 / (1 + d1 / (1 + d2 / (1 + …)))."""
    values = np.empty_like(x)
    left = np.arange(x.size)  # the elements that have not converged
    c, d = np.ones_like(x), 1.0 - (a + b) * x / (a + 1.0) + _TINY
    d = 1.0 / d
    value = d.copy()
    for m in range(1, MAX_ROUNDS + 1):
        twice = a + 2 * m
        even = m * (b - m) * x / ((twice - 1.0) * twice)
        d = 1.0 / (1.0 + even * d + _TINY)
        c = 1.0 + even / c + _TINY
        value = value * (d * c)
        odd = -(a + m) * (a + b + m) * x / (twice * (twice + 1.0))
        d = 1.0 / (1.0 + odd * d + _TINY)
        c = 1.0 + odd / c + _TINY
        step = d * c
        value = value * step
        going_on = np.abs(step - 1.0) > TOLERANCE
        if not going_on.all():
            values[left[~going_on]] = value[~going_on]
            if not going_on.any():
                return values
            left, x, a, b = left[going_on], x[going_on], a[going_on], b[going_on]
            c, d, value = c[going_on], d[going_on], value[going_on]
    raise NotConvergedError(f"I(x; a, b) with a = {a[0]:g}, b = {b[0]:g}, x = {x[0]:g}: {MAX_ROUNDS} rounds")


def _lgamma(values: FloatArray) -> FloatArray:
    return np.fromiter(map(lgamma, values.tolist()), np.float64, values.size)
