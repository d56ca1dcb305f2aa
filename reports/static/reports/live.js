"use strict";
// Shows what the live socket sends, once a second, and comes back by itself when the connection is lost.
(() => {
    const root = document.querySelector("[data-live]");
    const state = document.getElementById("live-state");
    const pause = document.getElementById("live-pause");
    const groups = document.getElementById("live-groups");
    const FIRST_MS = 1000;
    const MOST_MS = 30000;
    const ENDED = {
        4401: "You are logged out: log in again to go on.",
        4403: "You may not see this any more.",
        4429: "Too many people watch at the moment.",
    };
    const sections = new Map();
    let socket = null;
    let wait = FIRST_MS;
    let timer = 0;
    let paused = false;

    const say = (kind, text) => {
        if (state.textContent !== text) state.textContent = text;
        state.dataset.state = kind;
    };

    const number = (value, digits) =>
        value === null ? "–" : value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
    const percent = (value) => (value === null ? "–" : `${number(100 * value, 1)} %`);
    const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");

    const put = (element, text) => {
        if (element.textContent !== text) element.textContent = text;
    };

    const rowsOf = (parent, count, make) => {
        while (parent.children.length > count) parent.lastElementChild.remove();
        while (parent.children.length < count) parent.append(make());
        return [...parent.children];
    };

    const makeRow = () => {
        const row = document.createElement("tr");
        const head = document.createElement("th");
        head.scope = "row";
        row.append(head);
        for (let place = 0; place < 6; place += 1) {
            const cell = document.createElement("td");
            cell.className = place < 5 ? "is-number" : "";
            row.append(cell);
        }
        return row;
    };

    const sectionOf = (name) => {
        if (!sections.has(name)) {
            const made = document.getElementById("live-group").content.firstElementChild.cloneNode(true);
            made.querySelector(".reports-scroll").setAttribute("aria-label", `Targets of ${name || "no group"}`);
            made.dataset.group = name;
            sections.set(name, made);
        }
        return sections.get(name);
    };

    const showGroup = (group) => {
        const section = sectionOf(group.group);
        put(section.querySelector("h2"), `${group.group || "No group"}: ${number(group.per_second, 1)} per second`);
        const outcomes = section.querySelector(".live-outcomes");
        rowsOf(outcomes, group.outcomes.length, () => document.createElement("li")).forEach((item, place) => {
            const each = group.outcomes[place];
            item.dataset.outcome = each.outcome;
            item.dataset.count = each.count;
            put(item, `${each.outcome.replaceAll("_", " ")}: ${number(each.per_second, 1)} per second, ${number(each.count, 0)} in all`);
        });
        section.querySelector(".reports-scroll").hidden = group.targets.length === 0;
        rowsOf(section.querySelector("tbody"), group.targets.length, makeRow).forEach((row, place) => {
            const target = group.targets[place];
            const cells = [
                target.target,
                percent(target.share),
                number(target.per_second, 1),
                number(target.count, 0),
                number(target.final, 3),
                number(target.dynamic, 3),
                target.out.length ? target.out.join("; ") : "in use",
            ];
            [...row.children].forEach((cell, column) => put(cell, cells[column]));
            row.lastElementChild.className = target.out.length ? "live-out" : "";
        });
        return section;
    };

    const show = (view) => {
        const figures = {
            per_second: number(view.per_second, 1),
            count: number(view.count, 0),
            since: clock(view.since),
            in_flight: number(view.in_flight, 0),
            queued: number(view.queued, 0),
            processes: number(view.processes, 0),
            revisions: view.revisions.filter(Boolean).join(", ") || "–",
        };
        for (const [name, text] of Object.entries(figures)) put(root.querySelector(`[data-figure="${name}"]`), text);
        const shown = view.groups.map(showGroup);
        const names = new Set(view.groups.map((group) => group.group));
        for (const [name, section] of sections) {
            if (!names.has(name)) {
                section.remove();
                sections.delete(name);
            }
        }
        shown.forEach((section, place) => {
            if (groups.children[place] !== section) groups.insertBefore(section, groups.children[place] || null);
        });
        document.getElementById("live-empty").hidden = shown.length > 0;
        root.dataset.shown = String(Number(root.dataset.shown || 0) + 1);
    };

    const connect = () => {
        const scheme = location.protocol === "https:" ? "wss:" : "ws:";
        const ours = new WebSocket(`${scheme}//${location.host}${root.dataset.live}`);
        socket = ours;
        ours.onmessage = (event) => {
            wait = FIRST_MS;
            ours.send("shown");
            if (paused) return;
            const view = JSON.parse(event.data);
            show(view);
            say("live", view.processes ? "Live" : "Live, but no gateway process says anything");
        };
        ours.onclose = (event) => {
            if (socket !== ours) return;
            socket = null;
            if (paused) return;
            if (event.code === 4401 || event.code === 4403) {
                say("ended", ENDED[event.code]);
                return;
            }
            const after = wait * (0.75 + Math.random() / 2);
            wait = Math.min(MOST_MS, wait * 2);
            say("lost", `${ENDED[event.code] || "The connection is lost."} Next try in ${Math.ceil(after / 1000)} s.`);
            timer = setTimeout(connect, after);
        };
    };

    pause.addEventListener("click", () => {
        paused = !paused;
        put(pause, paused ? "Go on" : "Pause");
        clearTimeout(timer);
        if (paused) {
            say("paused", "Paused");
            if (socket !== null) socket.close(1000);
        } else {
            wait = FIRST_MS;
            say("connecting", "Connecting …");
            connect();
        }
    });
    window.addEventListener("pagehide", () => {
        paused = true;
        if (socket !== null) socket.close(1000);
    });
    window.addEventListener("pageshow", (event) => {
        if (event.persisted) location.reload();
    });
    connect();
})();
