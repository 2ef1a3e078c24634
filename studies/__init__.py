"""The studies behind the documents' figures: everything that trains in order to learn something."""
