"""The one exception for what a person can mend."""


class UserError(ValueError):
    """A mistake in flags, files or data; its text is one line that says what is wrong and what would be right."""

    def __init__(self, message: str):
        super().__init__(" ".join(message.split()))
