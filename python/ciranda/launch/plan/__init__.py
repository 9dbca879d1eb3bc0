"""Decides which rank runs where and with which environment. Pure, except for look-ups."""
