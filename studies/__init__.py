"""What trains to learn something: the studies behind the figures in the documents."""
