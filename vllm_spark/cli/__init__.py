"""One small module per verb: parse, call, render. No logic lives here."""
