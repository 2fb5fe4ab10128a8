"""Agents: scheduling algorithms that filter and score nodes by measured load, requests and history."""
