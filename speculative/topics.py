"""What prompts are about. Topics that are held out come up in no training prompt, only where drafts are judged."""


def _several(text: str) -> tuple[str, ...]:
    return tuple(" ".join(one.split()) for one in text.split(";"))


TOPICS = _several(
    """
    the moon; volcanoes; honey bees; the Roman Empire; chess; coffee; glaciers; electric cars; jazz; whales;
    bridges; vaccines; the printing press; deserts; origami; gravity; rice; the Great Wall; sleep; penguins;
    submarines; tea; dinosaurs; photography; earthquakes; bicycles; the human heart; coral reefs; opera; bread;
    satellites; rainbows; windmills; the Silk Road; magnets; spiders; football; clocks; mountains; cheese;
    tornadoes; libraries; robots; owls; the Vikings; solar power; chocolate; elephants; trains; mathematics;
    lighthouses; rivers; violins; yoga; pyramids; mushrooms; airplanes; the stock market; wolves; perfume;
    tides; cooking; poetry; the internet; kangaroos; castles; batteries; gardening; democracy; sharks;
    fireworks; painting; the brain; swimming; salt; comets; horses; pottery; computers; forests; ants; theatre;
    thunderstorms; cats; medicine; maps; ice cream; gold; sailing; languages; dogs; recycling; the Olympics;
    butterflies; telescopes; music; dolphins; olive oil; camels; museums; tennis; steam engines; friendship;
    winter; teachers; dancing; clouds; wheat; courage; the ocean; time; cities; paper; memory; bears; islands;
    stars; breakfast; letters; money; holidays; water; summer; birds; kindness; tools; exercise; dreams; trees;
    glass; silk; apples; shadows; snow; fire; caves; rockets; crystals; lakes; wind; rain; bamboo; turtles;
    parrots; onions; markets in the Middle Ages; the speed of light; public transport; healthy eating; learning
    to read; old age
    """
)
HELD_OUT = _several(
    """
    eclipses; hedgehogs; the Aztecs; lemonade; parachutes; the tuba; sand dunes; knitting; the immune system;
    hot-air balloons; cinnamon; penicillin; badgers; the Renaissance; skateboards; geysers; marathons; wool;
    saxophones; beavers; tsunamis; mirrors; the abacus; figs; canoes; autumn; patience; waterfalls; radio;
    owning a pet; compasses; the Great Lakes; sourdough; fencing; peacocks; velvet; noise; ferries; moss;
    lanterns
    """
)
THINGS = _several(
    "apples; pencils; books; coins; marbles; stickers; cookies; tickets; shells; stamps; cards; eggs; flowers; bottles"
)
HELD_OUT_THINGS = ("ribbons", "lemons", "buttons", "kites")
NAMES = _several(
    "Anna; Ben; Clara; David; Emma; Felix; Grace; Henry; Iris; Jack; Kate; Leo; Mia; Noah; Olivia; Paul; Rosa; Tina"
)
HELD_OUT_NAMES = ("Ursula", "Viktor", "Wanda", "Yusuf")
TASKS = _several(
    """
    reverses a string; adds up a list of numbers; counts the vowels of a text; checks whether a number is prime;
    finds the largest of three numbers; sorts a list of words; computes a factorial; merges two dictionaries;
    removes duplicates from a list; converts Celsius to Fahrenheit; reads a file line by line; counts how often
    each word occurs; flattens a nested list; computes the average of a list; checks for a palindrome; prints a
    multiplication table; generates Fibonacci numbers; finds the second largest number; capitalises every word;
    splits a list into pairs; computes a greatest common divisor; validates an email address; shuffles a list;
    draws a triangle of stars; computes the sum of digits
    """
)
HELD_OUT_TASKS = _several(
    """
    rotates a list by n places; checks whether two words are anagrams; converts a number to binary; finds the
    longest word; computes compound interest; transposes a matrix; removes all punctuation; counts the words of
    a sentence
    """
)
