package waltzctl.interop;

import java.util.Map;

/**
 * What the messages of a storage node's two ports consist of, one letter for each field: q long, i int, b boolean, s string,
 * I list of ints, u UUID, f failure, h record header, r record; a letter after ? stands only if the boolean before it is true, a
 * parenthesis is a counted list.
 */
final class Layout {
    static final String DATA_PREFIX = "qqi";
    static final String ADMIN_PREFIX = "q";

    static final Map<Integer, String> DATA = Map.ofEntries(
        Map.entry(1, "ui"), Map.entry(2, "b"), Map.entry(3, "qqq"), Map.entry(4, "qb"), Map.entry(5, "qb"),
        Map.entry(6, "(r)b"), Map.entry(7, ""), Map.entry(8, "f"), Map.entry(9, "q"), Map.entry(10, "?h"),
        Map.entry(11, "q"), Map.entry(12, "?r"), Map.entry(13, "b"), Map.entry(14, "q"), Map.entry(15, "qi"),
        Map.entry(16, "(h)"), Map.entry(17, "qi"), Map.entry(18, "(r)"));

    static final Map<Integer, String> ADMIN_0 = Map.ofEntries(
        Map.entry(1, ""), Map.entry(2, "f"), Map.entry(3, "ui"), Map.entry(4, "Ib"), Map.entry(6, "Ibb"),
        Map.entry(7, "iqi"), Map.entry(8, "i(r)"), Map.entry(9, "i"), Map.entry(10, "iqqq"), Map.entry(11, ""),
        Map.entry(12, "s"), Map.entry(13, ""), Map.entry(14, "(ib)"));

    /** As version 0, but reads and writes of one partition are switched apart. */
    static final Map<Integer, String> ADMIN_1 = Map.ofEntries(
        Map.entry(1, ""), Map.entry(2, "f"), Map.entry(3, "ui"), Map.entry(4, "ib"), Map.entry(5, "ib"),
        Map.entry(6, "Ibb"), Map.entry(7, "iqi"), Map.entry(8, "i(r)"), Map.entry(9, "i"), Map.entry(10, "iqqq"),
        Map.entry(11, ""), Map.entry(12, "s"), Map.entry(13, ""), Map.entry(14, "(ib)"));

    private Layout() {
    }
}
