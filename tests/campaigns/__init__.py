"""Campaigns against remat that anyone can repeat: ``make fuzz`` and ``make faults``; see docs/campaigns.md.

A campaign makes cases from a seed, runs remat on each, and checks what comes of it against truth that shares no code
with remat: ``truth`` searches all schedules, ``judge`` replays plans. Both read documents, by docs/mathematics.md.
"""
