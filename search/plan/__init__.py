"""What a corpus of any size will take: time, bytes, memory, money, by arithmetic on measured constants."""
