"""Fuzzing of every decoder of bytes that a stranger can send: `make fuzz`, and the replay of its findings.

`decoders` lists the decoders with their allowed errors and bounds. `hostile` and `mutated` make inputs. `cost` measures
processor time and memory. `python -m tests.fuzz` searches; the inputs of its findings stay in `corpus/`, and
`test_corpus.py` replays them. `test_growth.py` compares the time for inputs of one shape and different sizes.
"""
