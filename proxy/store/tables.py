"""The tables of turns, for every engine. Never change them once released: a migration makes tables of its own time.

Each engine fills in its words: `id` for a number that rises with each row, `bytes`, `number`, and `small` for a table
whose rows are nothing but a short key and numbers.
"""

from __future__ import annotations

TURNS = (
    # Each text once: thoughts, and the JSON of calls and details. An empty text has no row; its number is 0.
    """CREATE TABLE texts (
        id {id},
        hash {bytes} NOT NULL UNIQUE, -- salted
        uses {number} NOT NULL,       -- by so many fields of turns; the last one takes the row with it
        size {number} NOT NULL,       -- in bytes as UTF-8; where `data` is shorter, it is compressed with zlib
        data {bytes} NOT NULL
    )""",
    """CREATE TABLE turns (
        id {id},
        key {bytes} NOT NULL,
        thought {number} NOT NULL,    -- texts.id, as the next two
        calls {number} NOT NULL,
        details {number} NOT NULL,
        nth {number} NOT NULL,        -- rises with each put of the same key
        created {number} NOT NULL,    -- seconds since 1970
        used {number} NOT NULL,       -- the same, to the hour
        effort TEXT,
        blanks TEXT,                  -- NULL: none; empty: cannot be put back; else a JSON array of two texts
        mark {bytes} NOT NULL,
        seen {bytes} NOT NULL,
        system {bytes} NOT NULL,
        client TEXT,
        conversation TEXT,
        made {number} NOT NULL,       -- milliseconds since 1970
        depth {number} NOT NULL,      -- so many messages before it
        settled {number} NOT NULL,    -- 1: a weaker key led here; else 0
        UNIQUE (key, thought, seen)
    )""",
    "CREATE INDEX turns_used ON turns (used)",
    """CREATE TABLE weaker (
        key {bytes} PRIMARY KEY,
        turn {number},                -- turns.id; NULL: it leads to several thoughts, and stays so
        seen {number}                 -- NULL while it leads to a turn, with which it goes; else when it was met last
    ) {small}""",
    "CREATE INDEX weaker_turn ON weaker (turn, seen)",
    # Kept up with each change, so that nothing need be counted to know it.
    "CREATE TABLE totals (name TEXT PRIMARY KEY, value {number} NOT NULL)",
    "INSERT INTO totals (name, value) VALUES ('turn_bytes', 0)",
)
