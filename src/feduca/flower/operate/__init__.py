"""What the server's operator sees of a deployment: a log in one format, metrics, a health address, alerts.

All of it reads what the run leaves on the disk, in the process that started the SuperLink: the round loop knows nothing of it,
so nothing here can delay or end a round.
"""
